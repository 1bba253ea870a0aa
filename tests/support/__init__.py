"""Factories, fakes and fixtures shared by the tests."""
