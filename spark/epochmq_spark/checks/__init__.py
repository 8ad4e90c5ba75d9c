"""The audits: each a small module from tables to findings."""
