"""The availability modes: one object for the place of a broker in its group."""
