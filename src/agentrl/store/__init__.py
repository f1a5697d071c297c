"""Where the processes of a run meet. ``open_store`` picks the backend by URL."""

from agentrl.store.base import Admission, PassRate, QueueCounts, RunningGroup, Store, Taken, TakeRule
from agentrl.store.blocking import BlockingStore
from agentrl.store.open import open_store, store_exists, stored_runs

__all__ = [
    "Admission",
    "BlockingStore",
    "PassRate",
    "QueueCounts",
    "RunningGroup",
    "Store",
    "TakeRule",
    "Taken",
    "open_store",
    "store_exists",
    "stored_runs",
]
