"""Evaluation: perplexity of texts, multiple choice by log-likelihood, and the loss of rows, of a model and adapters.

``harness`` puts a model into lm-evaluation-harness; it needs the extra ``tritune[eval]``.
"""

from tritune.evaluation.measure import TASKS, Evaluation, TaskName, evaluate, make_task, run_task
from tritune.evaluation.scorer import Score, Scorer
from tritune.evaluation.tasks import Task

__all__ = ["TASKS", "Evaluation", "Score", "Scorer", "Task", "TaskName", "evaluate", "make_task", "run_task"]
