"""Documents and live state as text for people, 100 columns wide."""
