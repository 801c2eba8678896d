"""Microsoft's own library as a client of `ftctl devcloud azureml --tls`, whose variables are in the environment."""

import os

# The library's own way to another service than the public one, which it reads when it is imported.
os.environ["AZUREML_DEV_URL_MFE"] = os.environ["FTCTL_ENDPOINT_AZUREML"]

from azure.ai.ml import MLClient
from azure.identity import ManagedIdentityCredential


def connect(**more):
    workspace = [os.environ["AZUREML_ARM_" + part] for part in ("SUBSCRIPTION", "RESOURCEGROUP", "WORKSPACE_NAME")]
    return MLClient(ManagedIdentityCredential(), *workspace, enable_telemetry=False, **more)
