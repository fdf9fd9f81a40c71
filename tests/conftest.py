"""Fixtures that every kind of test shares."""

from __future__ import annotations
