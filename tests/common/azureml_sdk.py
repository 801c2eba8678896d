"""Microsoft's own library with `ftctl devcloud azureml --tls`, whose variables are in the environment."""

import os
import pathlib
import time

import azureml_client
from azure.ai.ml import Input, PyTorchDistribution, command
from azure.ai.ml.constants import _common
from azure.ai.ml.entities import AmlCompute, Data, Environment
from azure.ai.ml.operations import _job_ops_helper

# An account of storage has a name of its own, which the simulation has not. Logs are followed at the addresses in the run history.
_common.STORAGE_ACCOUNT_URLS["AzureBlob"] = os.environ["FTCTL_ENDPOINT_AZUREML"] + "/_storage/{}"
_job_ops_helper.get_datastore_info = lambda *_: None
_job_ops_helper._wait_before_polling = lambda _: 0.5

# Seconds; without it half a minute.
client = azureml_client.connect(polling_interval=1)


def until(job, *states):
    while (status := client.jobs.get(job.name).status) not in states:
        time.sleep(0.2)
    return status.value


wanted = AmlCompute(name="gpu", size="Standard_ND40rs_v2", tier="low_priority", min_instances=0, max_instances=1)
cluster = client.compute.begin_create_or_update(wanted).result()
print("cluster:", cluster.provisioning_state.value)


def submit(name, text, **more):
    return client.jobs.create_or_update(
        command(
            name=name,
            command=text,
            compute="gpu",
            environment=Environment(name="any", version="1", image="registry.example/any:1"),
            distribution=PyTorchDistribution(process_count_per_instance=1),
            instance_count=1,
            **more,
        )
    )


# Uploaded with the job, and from a datastore.
sources = pathlib.Path("src")
sources.mkdir()
(sources / "say.sh").write_text('echo "the job of rank $RANK speaks, of $1 and $2"\n')
folder = "azureml://datastores/workspaceblobstore/paths/"
client.data.create_or_update(Data(name="words", version="1", type="uri_folder", path=folder + "words/"))
inputs = {"numbers": Input(type="uri_folder", path=folder + "numbers/"), "words": Input(type="uri_folder", path="azureml:words:1")}
first = submit("first-a1", "sh say.sh ${{inputs.numbers}} ${{inputs.words}}", code="./src", inputs=inputs)
client.jobs.stream(first.name)
print("first:", until(first, "Completed", "Failed", "Canceled"))

client.jobs.download(first.name, download_path="downloaded")
for path in sorted(pathlib.Path("downloaded").rglob("std_log*.txt")):
    print("downloaded:", path.name, path.read_text().strip())

second = submit("second-a1", "sleep 600")
until(second, "Running")
client.jobs.begin_cancel(second.name).result()
print("second:", until(second, "Completed", "Failed", "Canceled"))

# Of ftctl, by its tags; it is ftctl that ends it.
submit("other-bcdfgh-a1", "sleep 600", tags={"ftctl": "1", "ftctl-job": "other-bcdfgh", "ftctl-attempt": "1"})
