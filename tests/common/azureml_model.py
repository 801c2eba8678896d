"""Reads a registered model with Microsoft's own library, from `ftctl devcloud azureml --tls`, whose variables are in the environment."""

import json
import os
import sys

# The library's own way to another service than the public one.
os.environ["AZUREML_DEV_URL_MFE"] = os.environ["FTCTL_ENDPOINT_AZUREML"]

from azure.ai.ml import MLClient
from azure.identity import ManagedIdentityCredential

client = MLClient(
    ManagedIdentityCredential(),
    os.environ["AZUREML_ARM_SUBSCRIPTION"],
    os.environ["AZUREML_ARM_RESOURCEGROUP"],
    os.environ["AZUREML_ARM_WORKSPACE_NAME"],
    enable_telemetry=False,
)
name, version = sys.argv[1:]
model = client.models.get(name, version)
fields = ["name", "version", "type", "path", "description", "job_name", "tags"]
print(json.dumps({field: getattr(model, field) for field in fields}))
