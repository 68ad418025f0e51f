"""A run as one HTML file: no script, no request, nothing that needs a server."""
