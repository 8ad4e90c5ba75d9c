"""Tests of POP consumption."""
