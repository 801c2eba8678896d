"""Microsoft's own library with `ftctl devcloud azureml`, whose variables are in the environment."""

import os
import time

here = os.environ["FTCTL_ENDPOINT_AZUREML"]
# The library's own way to another service than the public one.
os.environ["AZUREML_DEV_URL_MFE"] = here

from azure.ai.ml import MLClient, PyTorchDistribution, command
from azure.ai.ml.entities import AmlCompute, Environment
from azure.ai.ml.operations import _job_ops_helper
from azure.core.pipeline.policies import _authentication
from azure.identity import ManagedIdentityCredential

# The simulation speaks plain HTTP on loopback, where the library sends no token by itself.
_authentication._enforce_https = lambda request: request.context.options.pop("enforce_https", None)
# The workspace's storage account is not simulated: logs come from the addresses in the run history.
_job_ops_helper.get_datastore_info = lambda *_: None
_job_ops_helper._wait_before_polling = lambda _: 0.5

client = MLClient(
    ManagedIdentityCredential(),
    os.environ["AZUREML_ARM_SUBSCRIPTION"],
    os.environ["AZUREML_ARM_RESOURCEGROUP"],
    os.environ["AZUREML_ARM_WORKSPACE_NAME"],
    enable_telemetry=False,
    # Seconds; without it half a minute.
    polling_interval=1,
)


def until(job, *states):
    while (status := client.jobs.get(job.name).status) not in states:
        time.sleep(0.2)
    return status.value


wanted = AmlCompute(name="gpu", size="Standard_ND40rs_v2", tier="low_priority", min_instances=0, max_instances=1)
cluster = client.compute.begin_create_or_update(wanted).result()
print("cluster:", cluster.provisioning_state.value)


def submit(name, text):
    return client.jobs.create_or_update(
        command(
            name=name,
            command=text,
            compute="gpu",
            environment=Environment(name="any", version="1", image="registry.example/any:1"),
            distribution=PyTorchDistribution(process_count_per_instance=1),
            instance_count=1,
        )
    )


first = submit("first-a1", "echo the job of rank $RANK speaks")
client.jobs.stream(first.name)
print("first:", until(first, "Completed", "Failed", "Canceled"))

second = submit("second-a1", "sleep 600")
until(second, "Running")
client.jobs.begin_cancel(second.name).result()
print("second:", until(second, "Completed", "Failed", "Canceled"))
client.compute.begin_delete("gpu").result()
