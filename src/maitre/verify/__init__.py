"""Is the setting right in production? What a server's own metrics say, and which dial to turn if it is not."""
