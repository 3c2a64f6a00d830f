"""The families: functions that return specs, and one literal table of their presets."""
