"""The report of an audit: one page that needs nothing but itself."""
