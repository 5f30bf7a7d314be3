"""The report as one HTML file that needs nothing else: words of `text`, charts, and the JSON."""
