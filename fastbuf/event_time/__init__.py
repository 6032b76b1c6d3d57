"""Event time: watermarks, the valve of a gate, windows and triggers."""
