"""Judges lock histories by docs/history.md, without any code of Latchwork."""
