"""The Kubernetes manifests against published schemas, for the step `manifests` of `cargo xtask test`.

Called with the manifests. Prints a line of JSON for every check: what was checked, and the error if it
failed. One more line has the server's arguments. Core objects are checked against the OpenAPI document of Kubernetes, custom resources against
the definitions that a cluster with their operators has published. Unknown fields are errors. Rules
in CEL (`x-kubernetes-validations`) are not evaluated.

That the schemas are strict is checked as well: copies with one damage each must be refused.
"""

import copy
import gzip
import importlib.util
import json
import pathlib
import sys

import jsonschema
import kubernetes_validate
import yaml

VERSION = "1.37"
# Objects whose keys can be any.
FREE_KEYS = {"matchLabels", "labels", "annotations", "requests", "limits"}


def custom_resources():
    """Definitions by (group/version, kind), out of a package that is not imported."""
    package = importlib.util.find_spec("class_generator").submodule_search_locations[0]
    path = pathlib.Path(package) / "schema/__resources-mappings.json.gz"
    found = {}
    for schemas in json.loads(gzip.decompress(path.read_bytes())).values():
        for schema in schemas:
            for name in schema.get("x-kubernetes-group-version-kind", []):
                if "." in name["group"]:
                    found[f"{name['group']}/{name['version']}", name["kind"]] = schema
    return found


def closed(schema):
    """The schema, in which fields that it does not name are errors."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed_schema = {key: closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict):
        is_open = schema.get("x-kubernetes-preserve-unknown-fields")
        if not is_open and "additionalProperties" not in schema:
            closed_schema["additionalProperties"] = False
    return closed_schema


CUSTOM = custom_resources()


def validate(document):
    """Raises what is wrong with it."""
    name = document["apiVersion"], document["kind"]
    schema = CUSTOM.get(name)
    if schema is None:
        kubernetes_validate.validate(document, VERSION, strict=True)
        return
    # Metadata is that of every object: its schema comes with the core.
    schema = closed({**schema, "properties": {**schema["properties"], "metadata": {}}})
    jsonschema.Draft202012Validator(schema).validate(document)
    core = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": document["metadata"]}
    kubernetes_validate.validate(core, VERSION, strict=True)


def error_of(document):
    try:
        validate(document)
    except kubernetes_validate.ValidationError as error:
        return f"{'.'.join(map(str, error.path))}: {error.message}"
    except jsonschema.ValidationError as error:
        return f"{'.'.join(map(str, error.path))}: {error.message}"
    except kubernetes_validate.SchemaNotFoundError as error:
        return error.message
    return None


def places(value, path=()):
    """Everything in a document, with its path."""
    yield path, value
    items = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, item in items:
        yield from places(item, (*path, key))


def is_free(path):
    """Whether keys of an object can be any."""
    return path[-1:] and path[-1] in FREE_KEYS or path == ("spec", "selector")


def damaged(document):
    """Copies with an unknown field in one object, or with a value of another type in one place."""
    for path, value in places(document):
        changed = copy.deepcopy(document)
        holder = changed
        for key in path[:-1]:
            holder = holder[key]
        shown = ".".join(map(str, path))
        if isinstance(value, dict) and not is_free(path):
            (holder[path[-1]] if path else holder)["unknownField"] = 1
            yield f"an unknown field in `{shown}`", changed
        elif isinstance(value, (str, int)) and path not in (("apiVersion",), ("kind",)):
            holder[path[-1]] = {"unknownField": []}
            yield f"an object as `{shown}`", changed


def consistency(documents):
    """What schemas cannot see: names that are told in one object and meant in another."""
    one = {document["kind"]: document for document in documents}
    deployment, service = one["Deployment"]["spec"], one["Service"]
    labels = deployment["template"]["metadata"]["labels"]
    container = deployment["template"]["spec"]["containers"][0]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    pool, route, monitor = one["InferencePool"], one["HTTPRoute"], one["ServiceMonitor"]

    def selects(selector, labels):
        return selector.items() <= labels.items()

    yield "the Deployment selects its pods", selects(deployment["selector"]["matchLabels"], labels)
    yield "the Service selects the pods", selects(service["spec"]["selector"], labels)
    yield "the pool selects the pods", selects(pool["spec"]["selector"]["matchLabels"], labels)
    yield (
        "the monitor selects the Service",
        selects(monitor["spec"]["selector"]["matchLabels"], service["metadata"]["labels"]),
    )
    targets = {port["targetPort"] for port in service["spec"]["ports"]}
    yield "the Service's ports are the container's", targets <= set(ports)
    numbers = {port["number"] for port in pool["spec"]["targetPorts"]}
    yield "the pool's ports are the container's", numbers <= set(ports.values())
    scraped = {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]}
    served = {port["name"] for port in service["spec"]["ports"]}
    yield "the monitor's ports are the Service's", scraped <= served
    backends = {
        (backend["kind"], backend["name"])
        for rule in route["spec"]["rules"]
        for backend in rule["backendRefs"]
    }
    yield "the route's backend is the pool", backends == {("InferencePool", pool["metadata"]["name"])}
    probed = {container[probe]["httpGet"]["port"] for probe in container if probe.endswith("Probe")}
    yield "the probes' ports are the container's", probed <= set(ports)
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"] for volume in deployment["template"]["spec"]["volumes"]}
    yield "what is mounted is a volume", mounts == volumes
    args = container["args"]
    grace = int(args[args.index("--grace") + 1])
    seconds = deployment["template"]["spec"]["terminationGracePeriodSeconds"]
    yield "pods are given longer than --grace", seconds > grace


def tell(what, error):
    print(json.dumps({"what": what, "error": error}), flush=True)


def main():
    everything = []
    for path in map(pathlib.Path, sys.argv[1:]):
        for document in yaml.safe_load_all(path.read_text()):
            everything.append(document)
            name = f"{path.name}: {document['kind']}"
            tell(name, error_of(document))
            accepted = [what for what, copy in damaged(document) if error_of(copy) is None]
            error = f"accepted: {', '.join(accepted)}" if accepted else None
            tell(f"{name}, damaged in {sum(1 for _ in damaged(document))} ways", error)
    try:
        for what, holds in consistency(everything):
            tell(what, None if holds else "does not hold")
    except (KeyError, ValueError) as error:
        # A schema's check says so too, if it is a field that must be there.
        tell("names agree", f"nothing is called {error}")
    deployment = next(document for document in everything if document["kind"] == "Deployment")
    print(json.dumps({"args": deployment["spec"]["template"]["spec"]["containers"][0]["args"]}))


main()
