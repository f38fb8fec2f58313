"""Panels of a Grafana dashboard in its classic JSON (schema 39), each as wide as it asks for.

Field names: Grafana 10 and 11, `timeseries`, `heatmap` and `row` panels, as vLLM's own dashboards have them
(`examples/observability/prometheus_grafana/grafana.json`, 0.33).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

DATASOURCE = {"type": "prometheus", "uid": "${DS_PROMETHEUS}"}
COLUMNS = 24
"""Of Grafana's grid."""


class Series(NamedTuple):
    """One query of a panel."""

    legend: str
    expr: str
    """A template of `maitre.export.queries`."""


class Panel(NamedTuple):
    """One panel, before names are filled in."""

    title: str
    unit: str
    """Grafana's name of it."""
    series: tuple[Series, ...]
    text: str
    """What a reader needs to know of it."""
    limit: float | None = None
    """Drawn as a line; beyond it the plot is red."""
    low: float | None = None
    """Below it the plot is blue."""
    maximum: float | None = None
    """Of the axis."""
    is_heatmap: bool = False
    width: int = 8
    height: int = 8


class Row(NamedTuple):
    """A heading, and the panels under it."""

    title: str
    panels: tuple[Panel, ...]


def panel_json(panel: Panel, number: int, x: int, y: int, exprs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """A panel at its place.

    Args:
        panel: the panel.
        number: its id.
        x: column, from 0.
        y: line, from 0.
        exprs: legend and query of each series that the deployment has.
    """
    kind = "heatmap" if panel.is_heatmap else "timeseries"
    form = "heatmap" if panel.is_heatmap else "time_series"
    return {
        "id": number,
        "type": kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": DATASOURCE,
        "gridPos": {"h": panel.height, "w": panel.width, "x": x, "y": y},
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": DATASOURCE,
                "editorMode": "code",
                "expr": expr,
                "format": form,
                "legendFormat": legend,
                "range": True,
            }
            for place, (legend, expr) in enumerate(exprs)
        ],
        **(_heatmap(panel) if panel.is_heatmap else _timeseries(panel)),
    }


def row_json(title: str, number: int, y: int) -> dict[str, Any]:
    """A heading over the whole width."""
    place = {"h": 1, "w": COLUMNS, "x": 0, "y": y}
    return {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}


def _threshold_steps(panel: Panel) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = [{"color": "green" if panel.low is None else "blue", "value": None}]
    if panel.low is not None:
        steps.append({"color": "green", "value": panel.low})
    if panel.limit is not None:
        steps.append({"color": "red", "value": panel.limit})
    return steps


def _timeseries(panel: Panel) -> dict[str, Any]:
    steps = _threshold_steps(panel)
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "min": 0,
        "color": {"mode": "palette-classic"},
        "custom": {
            "drawStyle": "line",
            "lineInterpolation": "linear",
            "lineWidth": 1,
            "fillOpacity": 8,
            "showPoints": "never",
            "spanNulls": False,
            "thresholdsStyle": {"mode": "line" if len(steps) > 1 else "off"},
        },
        "thresholds": {"mode": "absolute", "steps": steps},
    }
    if panel.maximum is not None:
        defaults["max"] = panel.maximum
    return {
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    }


def _heatmap(panel: Panel) -> dict[str, Any]:
    return {
        "fieldConfig": {"defaults": {"custom": {"scaleDistribution": {"type": "linear"}}}, "overrides": []},
        "options": {
            "calculate": False,
            "cellGap": 1,
            "color": {"mode": "scheme", "scheme": "Oranges", "scale": "exponential", "exponent": 0.5, "steps": 64},
            "filterValues": {"le": 1e-9},
            "legend": {"show": True},
            "rowsFrame": {"layout": "auto"},
            "tooltip": {"mode": "single", "yHistogram": False},
            "yAxis": {"axisPlacement": "left", "reverse": False, "unit": panel.unit},
        },
    }
