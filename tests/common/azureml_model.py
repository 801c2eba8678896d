"""Reads a registered model with Microsoft's own library, from `ftctl devcloud azureml --tls`, whose variables are in the environment."""

import json
import sys

import azureml_client

name, version = sys.argv[1:]
model = azureml_client.connect().models.get(name, version)
fields = ["name", "version", "type", "path", "description", "job_name", "tags"]
print(json.dumps({field: getattr(model, field) for field in fields}))
