"""Process groups and how ranks reduce."""
