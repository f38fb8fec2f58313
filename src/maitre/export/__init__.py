"""What is deployed beside a server: alert rules, recording rules and a dashboard for its metrics."""

from maitre.export.dashboard import Dashboard, make_dashboard
from maitre.export.installed_metrics import NEWEST, InstalledMetrics, metrics_of_scrape, metrics_of_version
from maitre.export.queries import Queries, checked_labels, checked_matchers
from maitre.export.rule_files import prometheus_rule, to_yaml
from maitre.export.rules import Rules, make_rules
from maitre.export.thresholds import Thresholds, study_targets

__all__ = [
    "NEWEST",
    "Dashboard",
    "InstalledMetrics",
    "Queries",
    "Rules",
    "Thresholds",
    "checked_labels",
    "checked_matchers",
    "make_dashboard",
    "make_rules",
    "metrics_of_scrape",
    "metrics_of_version",
    "prometheus_rule",
    "study_targets",
    "to_yaml",
]
