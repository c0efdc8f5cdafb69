"""Small tools that every package uses: paths, atomic files, logging, the event loop, deadlines, retry statistics."""
