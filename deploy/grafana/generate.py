#!/usr/bin/env python3
"""Writes the dashboards in dashboards/ (Grafana 9 or later). These files are deployed.

    deploy/grafana/generate.py           write them
    deploy/grafana/generate.py --check   fail if one differs from what would be written

What they show is in panels.py; layout, variables and repeated settings are made here.
"""

import json
import pathlib
import sys

from panels import DASHBOARDS

OUT = pathlib.Path(__file__).resolve().parent / "dashboards"
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
SELECTIONS = {
    "ROUTER": 'model=~"$model",instance=~"$instance"',
    "REPLICA": 'model=~"$model",replica=~"$replica",instance=~"$instance"',
    "PROCESS": 'role!="",instance=~"$instance"',  # one may serve several models
}
WIDTH, HEIGHT = 24, 8  # of the grid, and of a panel


def fill(expression):
    for name, selection in SELECTIONS.items():
        expression = expression.replace(name, selection)
    return expression.replace("sum by () ", "sum ")


def panel_json(panel, number, x, y):
    defaults = {"unit": panel.unit, "min": 0}
    if panel.maximum is not None:
        defaults["max"] = panel.maximum
    if panel.thresholds:
        steps = [{"color": colour, "value": value if i else None}
                 for i, (value, colour) in enumerate(panel.thresholds)]
        defaults |= {"thresholds": {"mode": "absolute", "steps": steps},
                     "color": {"mode": "thresholds" if panel.kind == "stat" else "palette-classic"}}
    if panel.mappings:
        texts = enumerate(panel.mappings.items())
        defaults["mappings"] = [{"type": "value", "options": {
            value: {"text": text, "index": i} for i, (value, text) in texts}}]
    targets = []
    for i, (legend, expression) in enumerate(panel.queries):
        target = {"refId": chr(ord("A") + i), "datasource": DATASOURCE, "editorMode": "code",
                  "expr": fill(expression), "legendFormat": legend, "range": True}
        targets.append(target | ({"format": "heatmap"} if panel.kind == "heatmap" else {}))
    options = {}
    if panel.kind == "timeseries":
        defaults["custom"] = {"fillOpacity": 30 if panel.stacked else 5, "showPoints": "never",
                              "stacking": {"mode": "normal" if panel.stacked else "none"}}
        options = {"legend": {"displayMode": "list", "placement": "bottom"},
                   "tooltip": {"mode": "multi", "sort": "desc"}}
    elif panel.kind == "stat":
        options = {"colorMode": "background", "graphMode": "none", "textMode": "value_and_name",
                   "reduceOptions": {"calcs": ["lastNotNull"], "values": False}}
    else:
        options = {"calculate": False, "yAxis": {"unit": panel.unit}, "cellGap": 1,
                   "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64}}
    return {"id": number, "type": panel.kind, "title": panel.title,
            "description": panel.description, "datasource": DATASOURCE,
            "gridPos": {"x": x, "y": y, "w": panel.width, "h": HEIGHT},
            "fieldConfig": {"defaults": defaults, "overrides": []}, "options": options,
            "targets": targets}


def layout(rows):
    """Rows of panels from left to right, as many in a line as fit."""
    made, y = [], 0
    for title, panels in rows:
        made.append({"id": len(made) + 1, "type": "row", "title": title, "collapsed": False,
                     "panels": [], "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1}})
        x, y = 0, y + 1
        for panel in panels:
            if x + panel.width > WIDTH:
                x, y = 0, y + HEIGHT
            made.append(panel_json(panel, len(made) + 1, x, y))
            x += panel.width
        y += HEIGHT
    return made


def variable(name, label):
    query = f"label_values(flotilla_build_info, {name})"
    return {"name": name, "label": label, "type": "query", "datasource": DATASOURCE,
            "query": {"query": query, "refId": name}, "definition": query, "refresh": 2, "sort": 3,
            "multi": True, "includeAll": True, "allValue": ".*",
            "current": {"text": "All", "value": "$__all"}}


def dashboard(name, title, rows):
    links = [{"type": "dashboards", "title": "flotilla", "tags": ["flotilla"], "asDropdown": True,
              "includeVars": True, "keepTime": True}]
    return {"uid": f"flotilla-{name}", "title": title, "tags": ["flotilla"], "schemaVersion": 37,
            "version": 1, "editable": True, "graphTooltip": 1, "refresh": "10s",
            "time": {"from": "now-1h", "to": "now"}, "timezone": "", "links": links,
            "templating": {"list": [
                {"name": "datasource", "label": "Prometheus", "type": "datasource",
                 "query": "prometheus", "refresh": 1},
                variable("model", "Model"), variable("replica", "Replica"),
                variable("instance", "Instance")]},
            "panels": layout(rows)}


def main():
    OUT.mkdir(exist_ok=True)
    stale = {path.name for path in OUT.glob("*.json")} - {f"{name}.json" for name in DASHBOARDS}
    for name, (title, rows) in DASHBOARDS.items():
        path = OUT / f"{name}.json"
        text = json.dumps(dashboard(name, title, rows), indent=1) + "\n"
        if "--check" not in sys.argv:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            stale.add(path.name)
    if stale:
        sys.exit(f"not what generate.py writes: {', '.join(sorted(stale))}")


if __name__ == "__main__":
    main()
