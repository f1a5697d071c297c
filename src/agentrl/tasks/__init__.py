"""Task files, prompts, answers."""

from agentrl.tasks.answers import extract_answer
from agentrl.tasks.files import TaskFileError, TaskProblem, load_tasks
from agentrl.tasks.prompts import task_messages

__all__ = ["TaskFileError", "TaskProblem", "extract_answer", "load_tasks", "task_messages"]
