"""Where the processes of a run meet. ``open_store`` picks the backend by URL."""

from agentrl.store.base import Admission, Store, Taken, TakeRule

__all__ = ["Admission", "Store", "TakeRule", "Taken"]
