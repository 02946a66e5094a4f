"""What all tests share."""

import signal
import threading

# A shell starts background jobs with SIGINT ignored, and children inherit that: the tests of Ctrl-C would then wait for
# an interrupt that never comes.
if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
