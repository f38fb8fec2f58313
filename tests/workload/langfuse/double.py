"""A Langfuse server for the tests: what it is asked and what it answers is checked against Langfuse's OpenAPI document.

Behaviour beyond the document follows langfuse 4.16: limits of a page, cursors, newest first, sums in v1, error bodies.
"""

import base64
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime

from aiohttp import web
from openapi_schema_validator import OAS30Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT4

PUBLIC_KEY, SECRET_KEY = "pk-lf-1", "sk-lf-1"
BASIC = "Basic " + base64.b64encode(f"{PUBLIC_KEY}:{SECRET_KEY}".encode()).decode()
V2, V1 = "/api/public/v2/observations", "/api/public/observations"
FIELDS = {
    "core": ("id", "traceId", "startTime", "endTime", "projectId", "parentObservationId", "type"),
    "basic": ("name", "level", "statusMessage", "version", "environment", "userId", "sessionId"),
    "time": ("completionStartTime", "createdAt", "updatedAt"),
    "model": ("model", "providedModelName", "internalModelId", "modelParameters"),
    "usage": ("usageDetails", "costDetails", "totalCost"),
    "metrics": ("latency", "timeToFirstToken"),
    "trace_context": ("tags", "release", "traceName"),
    "io": ("input", "output"),
    "metadata": ("metadata",),
    "prompt": ("promptId", "promptName", "promptVersion"),
}
REQUIRED_V2 = ("modelId", "inputPrice", "outputPrice", "totalPrice")
"""Whatever the fields, says the document."""
COLUMNS = {
    "string": {"model", "name", "environment", "type"},
    "stringOptions": {"model", "name", "environment", "type"},
    "arrayOptions": {"traceTags", "tags"},
    "datetime": {"startTime", "endTime"},
}
OPERATORS = {"string": {"="}, "stringOptions": {"any of"}, "arrayOptions": {"any of"}, "datetime": {">=", "<"}}


class Contract:
    """Langfuse's OpenAPI document."""

    def __init__(self, document):
        self._document = document
        self._registry = Registry().with_resource("urn:api", Resource(contents=document, specification=DRAFT4))

    def wrong_parameters(self, path, query):
        """What is wrong with a query, in words."""
        known = {parameter["name"]: parameter for parameter in self._document["paths"][path]["get"]["parameters"]}
        for name, value in query:
            if name not in known:
                yield f"{path} has no parameter {name}"
                continue
            schema = known[name]["schema"]
            yield from self._errors(schema, int(value) if schema.get("type") == "integer" else value, listed=True)

    def wrong_answer(self, path, answer):
        """What is wrong with an answer, in words."""
        schema = self._document["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        yield from self._errors(schema, answer)

    def _errors(self, schema, value, *, listed=False):
        if listed and schema.get("type") == "array":
            value = [value]
        pointed = {"$ref": f"urn:api{schema['$ref']}"} if "$ref" in schema else schema
        validator = OAS30Validator(pointed, registry=self._registry, format_checker=OAS30Validator.FORMAT_CHECKER)
        for error in validator.iter_errors(value):
            yield f"{'.'.join(map(str, error.absolute_path))}: {error.message}"


@dataclass
class Double:
    """The server's data and moods, and what it was asked."""

    contract: Contract
    rows: list = field(default_factory=list)
    versions: tuple = ("v2", "v1")
    model_key: str = "model"
    max_window_s: float = float("inf")
    """Longer windows are too much for it."""
    overload: tuple = (422, {"message": "Query exceeded memory", "error": "Request timed out"})
    moods: list = field(default_factory=list)
    """Answers to give before the right ones: (status, headers, body)."""
    asked: list = field(default_factory=list)
    """Path and query of every request."""
    violations: list = field(default_factory=list)
    url: str = ""

    def app(self):
        app = web.Application()
        app.router.add_get(V2, self._observations)
        app.router.add_get(V1, self._observations)
        app.router.add_get("/api/public/health", self._health)
        return app

    async def _health(self, _):
        return web.json_response({"status": "OK", "version": "4.16.0"})

    async def _observations(self, request):
        query = list(request.query.items())
        self.asked.append((request.path, query))
        self.violations += self.contract.wrong_parameters(request.path, query)
        if request.headers.get("Authorization") != BASIC:
            message = {"error": "UnauthorizedError", "message": "Invalid credentials. Confirm that you've configured"}
            return web.json_response(message, status=401)
        if self.moods:
            status, headers, body = self.moods.pop(0)
            return web.Response(status=status, headers=headers, body=body)
        version = "v2" if request.path == V2 else "v1"
        if version not in self.versions:
            return web.json_response({"message": ABSENT[version], "error": "LangfuseNotFoundError"}, status=404)
        return self._answer(version, request)

    def _answer(self, version, request):
        query = request.query
        limit = int(query.get("limit", 50))
        if limit > {"v2": 1000, "v1": 100}[version]:
            return web.json_response({"message": "Invalid request data", "error": [{"path": ["limit"]}]}, status=400)
        wanted = _conditions(query)
        since, until = (wanted[name] for name in ("since", "until"))
        if (until - since).total_seconds() > self.max_window_s:
            return web.json_response(self.overload[1], status=self.overload[0])
        self.violations += _wrong_filter(query.get("filter"))
        rows = sorted((row for row in self.rows if _matches(row, wanted)), key=_order, reverse=True)
        answer = _page_v2(rows, limit, query, self.model_key) if version == "v2" else _page_v1(rows, limit, query)
        self.violations += self.contract.wrong_answer(request.path, answer)
        return web.json_response(answer)


ABSENT = {
    "v2": "This endpoint is only available in a Langfuse v4 write mode.",
    "v1": "This endpoint is not available on deployments running in Langfuse v4 events_only mode.",
}


def _conditions(query):
    """What is asked for; `filter` overrides everything else."""
    wanted = {"type": query.get("type"), "name": query.get("name"), "environment": query.getall("environment", [])}
    times = {"since": query["fromStartTime"], "until": query["toStartTime"]}
    if "filter" in query:
        wanted, times = {}, {}
        for condition in json.loads(query["filter"]):
            if condition["type"] == "datetime":
                times["since" if condition["operator"] == ">=" else "until"] = condition["value"]
            else:
                wanted[condition["column"]] = condition["value"]
    moments = {name: datetime.fromisoformat(text) for name, text in times.items()}
    nothing = {"since": datetime(1970, 1, 1, tzinfo=UTC), "until": datetime(2200, 1, 1, tzinfo=UTC)}
    return {name: value for name, value in wanted.items() if value} | nothing | moments


def _matches(row, wanted):
    held = {**row, "traceTags": row["tags"], "environment": row["environment"] or "default"}
    for name, value in wanted.items():
        if name in {"since", "until"}:
            continue
        values = value if isinstance(value, list) else [value]
        has = held[name] if isinstance(held[name], list) else [held[name]]
        if set(values).isdisjoint(has):
            return False
    return wanted["since"] <= datetime.fromisoformat(row["startTime"]) < wanted["until"]


def _wrong_filter(text):
    for condition in json.loads(text or "[]"):
        kind = condition["type"]
        if condition["column"] not in COLUMNS.get(kind, ()) or condition["operator"] not in OPERATORS[kind]:
            yield f"no such filter: {condition}"


def _order(row):
    return row["startTime"], row["id"]


def _page_v2(rows, limit, query, model_key):
    if cursor := query.get("cursor"):
        last = json.loads(base64.b64decode(cursor))
        rows = [row for row in rows if _order(row) < (last["lastStartTimeTo"], last["lastId"])]
    page, meta = rows[:limit], {}
    if len(rows) > limit:
        last = {"lastStartTimeTo": page[-1]["startTime"], "lastTraceId": page[-1]["traceId"], "lastId": page[-1]["id"]}
        meta = {"cursor": base64.b64encode(json.dumps(last).encode()).decode()}
    groups = ["core", *(query["fields"].split(",") if "fields" in query else ["basic"])]
    names = {name for group in groups for name in FIELDS.get(group, ())}
    data = []
    for row in page:
        shown = {model_key if name == "model" else name: value for name, value in row.items() if name in names}
        data.append(dict.fromkeys(REQUIRED_V2) | shown)
    return {"data": data, "meta": meta}


def _page_v1(rows, limit, query):
    page = int(query.get("page", 1))
    data = [_view(row) for row in rows[(page - 1) * limit : page * limit]]
    meta = {"page": page, "limit": limit, "totalItems": len(rows), "totalPages": -(-len(rows) // limit)}
    sunset = {"message": "Use v2.", "replacement": "GET /api/public/v2/observations", "sunsetAt": "2026-11-16"}
    return {"data": data, "meta": meta, "_deprecation": sunset}


def _view(row):
    """An observation as v1 shows it: sums beside the details, zero where there is no usage."""
    usage = row["usageDetails"] or {}
    sums = {side: sum(count for key, count in usage.items() if side in key) for side in ("input", "output", "total")}
    absent = ("promptName", "promptVersion", "modelId", "inputPrice", "outputPrice", "totalPrice", "latency")
    absent += ("calculatedInputCost", "calculatedOutputCost", "calculatedTotalCost", "timeToFirstToken", "promptId")
    shown = {name: value for name, value in row.items() if name not in {"tags", "projectId"}}
    compat = {"promptTokens": sums["input"], "completionTokens": sums["output"], "totalTokens": sums["total"]}
    return {
        **dict.fromkeys(absent), **shown, **compat,
        "usageDetails": usage, "costDetails": {}, "usage": {**sums, "unit": "TOKENS"},
        "environment": row["environment"] or "default", "input": None, "output": None, "metadata": {},
    }  # fmt: skip
