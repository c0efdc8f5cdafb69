"""The library's own way to score a reply, to compare ours with. Runs in a compute worker, as ours does."""

import signal

from resources_servers.math_with_judge.engine import NOTHING, LibraryCheck


def metric(expected: str, reply: str) -> LibraryCheck:
    """What `math_metric` gives, with the answer read out of what it printed."""
    from math_verify import (  # type: ignore[import-untyped]
        ExprExtractionConfig,
        LatexExtractionConfig,
        math_metric,
        verify,
    )

    # Its time limits are alarms on the wall clock: on a busy machine they would change the result.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    score = math_metric(
        gold_extraction_target=(LatexExtractionConfig(),),
        pred_extraction_target=(ExprExtractionConfig(), LatexExtractionConfig()),
    )
    try:
        reward, printed = score([f"\\boxed{{{expected}}}"], [reply])
    except Exception:
        return NOTHING
    golds, predictions = printed or ([], [])
    equal = [text for text in predictions if any(verify(gold, text) for gold in golds)]
    return LibraryCheck(float(reward), next(iter([*equal, *predictions]), None))
