"""Image names."""

from collections.abc import Iterable, Mapping


def rewrite_image(image: str | None, rewrites: Iterable[Mapping[str, str]]) -> str | None:
    """The image with the first matching prefix replaced, as for a mirror."""
    if image is None:
        return None
    for rewrite in rewrites:
        if image.startswith(rewrite["from"]):
            return rewrite["to"] + image.removeprefix(rewrite["from"])
    return image
