"""Ctrl-C is not lost in a destructor."""

import gc
import signal
import threading

import pytest

from maitre.trial.load.interrupts import interrupts_deferred


class Interrupted:
    """Garbage that only the collector finds, and that is interrupted when it is."""

    def __init__(self):
        self.me = self

    def __del__(self):
        signal.raise_signal(signal.SIGINT)


def test_an_interrupt_in_a_destructor_comes_behind_the_block():
    reached = []
    with pytest.raises(KeyboardInterrupt), interrupts_deferred():  # noqa: PT012
        Interrupted()
        gc.collect()
        reached.append("the end of the block")
    assert reached == ["the end of the block"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_was_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupts_deferred():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_another_thread_changes_no_handlers():
    seen = []

    def collect():
        with interrupts_deferred():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=collect)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
