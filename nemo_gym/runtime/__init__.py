"""Starting servers and keeping them running: worker, supervisor, launcher, virtualenvs, head server."""
