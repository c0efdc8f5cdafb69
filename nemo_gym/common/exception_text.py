"""The text of an exception that others raise: its `__str__` and `__repr__` may raise, too."""


def exception_repr(error: BaseException) -> str:
    """`repr(error)`; of an exception that has none, its class."""
    try:
        return repr(error)
    except Exception as failure:
        return _without_text(error, failure)


def exception_str(error: BaseException) -> str:
    """`str(error)`; of an exception that has none, its class."""
    try:
        return str(error)
    except Exception as failure:
        return _without_text(error, failure)


def _without_text(error: BaseException, failure: Exception) -> str:
    return f"{type(error).__name__} (its text raised {type(failure).__name__})"
