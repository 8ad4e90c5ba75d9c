"""Decides what the operator does next. Every module of this package is pure."""
