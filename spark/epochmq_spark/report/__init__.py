"""The HTML report of an audit: one self-contained page."""
