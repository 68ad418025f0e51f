"""Rules: pure decisions over what a run has shown so far. Time, that is the step, is a parameter."""

from floatscope_server.rules.parameters import RULES, RuleParameters
from floatscope_server.rules.run import RunWindow
from floatscope_server.rules.verdict import Finding, Severity, Status, Verdict

__all__ = ["RULES", "Finding", "RuleParameters", "RunWindow", "Severity", "Status", "Verdict"]
