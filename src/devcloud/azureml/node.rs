//! Nodes as processes: each rank of a job is a session that runs the job's command in a directory of its own, or in a container of
//! the job's image.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs::{self, File},
    io,
    os::unix::{fs::symlink, process::ExitStatusExt},
    path::{Component, Path, PathBuf},
    process::Stdio,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rustix::process::{Pid, Signal, getgid, getuid, kill_process_group};
use serde_json::Value;
use tokio::{
    net::TcpListener,
    process::{Child, Command},
    task::AbortHandle,
};

use super::{
    super::session,
    Devcloud, history,
    job::{Job, Phase},
    metadata,
    service::{Act, Service},
    storage, tokens,
};

/// How long a run has its own token.
const RUN_TOKEN: Duration = Duration::from_secs(86_400);

pub struct Host {
    executable: PathBuf,
    variables: Vec<(OsString, OsString)>,
    /// Whether ranks are containers on this computer's engine.
    engine: bool,
    /// By the job's name; `None` when no more are started.
    running: Mutex<Option<BTreeMap<String, Running>>>,
}

/// The processes of one life of a job, and what its nodes answer with.
#[derive(Default)]
struct Running {
    groups: Vec<Pid>,
    metadata: Vec<AbortHandle>,
    /// Names on this computer's engine, whose containers are no processes of the groups.
    containers: Vec<String>,
}

impl Running {
    fn cut(self) {
        self.signal(Signal::KILL);
        self.metadata.iter().for_each(AbortHandle::abort);
        if !self.containers.is_empty() {
            // There may be none of that name.
            let _ = std::process::Command::new("docker").args(["rm", "--force"]).args(&self.containers).output();
        }
    }

    fn signal(&self, signal: Signal) {
        for group in &self.groups {
            let _ = kill_process_group(*group, signal);
        }
    }
}

/// Everything that a life of a job is started with.
struct Order {
    name: String,
    life: u32,
    nodes: Vec<String>,
    processes: usize,
    command: String,
    image: String,
    folder: PathBuf,
    datastores: PathBuf,
    /// Files that were uploaded with the job, for its working directory.
    code: Vec<(PathBuf, Vec<u8>)>,
    variables: BTreeMap<String, String>,
    identity: String,
}

impl Host {
    pub fn new(executable: PathBuf, variables: Vec<(OsString, OsString)>, engine: bool) -> Self {
        Self { executable, variables, engine, running: Mutex::new(Some(BTreeMap::new())) }
    }

    pub fn perform(&self, devcloud: &Arc<Devcloud>, act: Act) {
        match act {
            Act::Start(job) => {
                let devcloud = devcloud.clone();
                tokio::spawn(async move {
                    if let Err(error) = devcloud.host.start(&devcloud, &job).await {
                        devcloud.at_present().fail(&job, &format!("devcloud cannot start this job: {error}"));
                    }
                });
            }
            Act::Terminate(job) => {
                if let Some(running) = self.running().as_ref().and_then(|running| running.get(&job)) {
                    running.signal(Signal::TERM);
                }
            }
            Act::Kill(job) => self.cut(&job),
        }
    }

    async fn start(&self, devcloud: &Arc<Devcloud>, name: &str) -> io::Result<()> {
        let Some(order) = order(&devcloud.at_present(), name) else { return Ok(()) };
        if let Err(why) = self.pull(&order.image).await {
            devcloud.at_present().fail(name, &why);
            return Ok(());
        }
        let mut running = Running::default();
        let port = free_port().await?;
        for node in 0..order.nodes.len() {
            let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
            let metadata =
                metadata::Node { job: name.to_owned(), name: order.nodes[node].clone(), identity: order.identity.clone() };
            let variables = metadata.variables(devcloud, &listener)?;
            running.metadata.push(tokio::spawn(metadata::serve(devcloud.clone(), metadata, listener)).abort_handle());
            for local in 0..order.processes {
                let rank = node * order.processes + local;
                let mut told = order.variables.clone();
                let of_node = variables.clone().into_iter().chain(ranks(&order, node, local, port));
                told.extend(of_node.map(|(name, value)| (name.to_owned(), value)));
                let mut command = self.command(&order, &order.folder.join(format!("node-{node}")), rank, &told)?;
                let output = history::output(&devcloud.at_present(), name, order.life, rank);
                let output = File::options().create(true).append(true).open(output)?;
                command.stdin(Stdio::null()).stderr(output.try_clone()?).stdout(output);
                running.containers.extend(self.engine.then(|| order.container(rank)));
                let (child, group) = session::start(&mut command)?;
                running.groups.push(group);
                tokio::spawn(reap(devcloud.clone(), name.to_owned(), order.life, rank, child));
            }
        }
        match &mut *self.running() {
            Some(all) => all.insert(name.to_owned(), running).into_iter().for_each(Running::cut),
            // Everything was shut down while it started.
            None => running.cut(),
        }
        // It may have lost its nodes, or been told to end, while it started.
        let job = |job: &Job| (job.retries == order.life).then_some(job.phase);
        let phase = devcloud.at_present().jobs.get(name).and_then(job);
        match phase {
            Some(Phase::Running | Phase::Ending { killed: None }) => {}
            Some(Phase::Ending { .. }) => self.perform(devcloud, Act::Terminate(name.to_owned())),
            _ => self.cut(name),
        }
        Ok(())
    }

    /// Without an engine every image is there. The error is the service's words.
    async fn pull(&self, image: &str) -> Result<(), String> {
        if !self.engine {
            return Ok(());
        }
        let mut docker = Command::new("docker");
        let pulled = docker.args(["pull", "--quiet", image]).env_clear().envs(self.variables.iter().cloned()).output().await;
        let why = match pulled {
            Ok(pulled) if pulled.status.success() => return Ok(()),
            Ok(pulled) => String::from_utf8_lossy(&pulled.stderr).trim().to_owned(),
            Err(error) => error.to_string(),
        };
        Err(format!("Failed to pull Docker image. Check that the image exists and that the compute may pull it: {why}"))
    }

    /// The command of a rank, in its node's directory.
    fn command(&self, order: &Order, home: &Path, rank: usize, told: &BTreeMap<String, String>) -> io::Result<Command> {
        let work = home.join("wd");
        fs::create_dir_all(&work)?;
        for (path, bytes) in &order.code {
            let path = work.join(path);
            fs::create_dir_all(path.parent().unwrap_or(&work))?;
            fs::write(path, bytes)?;
        }
        let mut command = if self.engine { self.contained(order, home, rank, told) } else { self.bare(order, home)? };
        command.current_dir(&work).envs(told);
        Ok(command)
    }

    /// A process of this computer.
    fn bare(&self, order: &Order, home: &Path) -> io::Result<Command> {
        let tools = home.join("bin");
        fs::create_dir_all(&tools)?;
        let program = tools.join("ftctl");
        if !program.exists() {
            symlink(&self.executable, program)?;
        }
        let mut command = Command::new("sh");
        command.arg("-c").arg(&order.command).env_clear().envs(self.variables.iter().cloned());
        command.env("PATH", self.path(&tools)).env("HOME", home);
        Ok(command)
    }

    /// A container of the job's image, with the job's directories and this computer's network. Secrets are in no command line.
    fn contained(&self, order: &Order, home: &Path, rank: usize, told: &BTreeMap<String, String>) -> Command {
        let (home, user) = (home.display(), format!("{}:{}", getuid().as_raw(), getgid().as_raw()));
        let mut command = Command::new("docker");
        command.env_clear().envs(self.variables.iter().cloned());
        command.args(["run", "--rm", "--network", "host", "--ipc", "host", "--entrypoint", "sh", "--user", &user]);
        let certificates = told.get("SSL_CERT_FILE").cloned();
        let shared = [&order.folder, &order.datastores].map(|folder| folder.display().to_string());
        command.args(shared.into_iter().chain(certificates).flat_map(|path| ["--volume".to_owned(), format!("{path}:{path}")]));
        command.args(["--name", &order.container(rank), "--workdir", &format!("{home}/wd")]);
        command.args(["--env", &format!("HOME={home}")]).args(told.keys().flat_map(|name| ["--env", name]));
        command.args([&order.image, "-c", &order.command]);
        command
    }

    /// The search path of a job: the image's folders come before this computer's own.
    fn path(&self, tools: &Path) -> OsString {
        let value = |wanted: &str| self.variables.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_os_str());
        let parts = [Some(tools.as_os_str()), value("DEVCLOUD_IMAGE_PATH"), value("PATH")];
        parts.into_iter().flatten().collect::<Vec<_>>().join(OsStr::new(":"))
    }

    fn running(&self) -> MutexGuard<'_, Option<BTreeMap<String, Running>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cut(&self, job: &str) {
        let running = self.running().as_mut().and_then(|running| running.remove(job));
        running.into_iter().for_each(Running::cut);
    }

    /// For good: a job that starts meanwhile is ended too.
    pub fn cut_all(&self) {
        let running = self.running().take();
        running.into_iter().flat_map(BTreeMap::into_values).for_each(Running::cut);
    }
}

impl Order {
    /// The name of a rank's container.
    fn container(&self, rank: usize) -> String {
        format!("devcloud-{}-{}-{rank}", self.name, self.life)
    }
}

/// `None` where the job has no nodes any more.
fn order(service: &Service, name: &str) -> Option<Order> {
    let job = service.jobs.get(name).filter(|job| job.phase == Phase::Running)?;
    let cluster = service.clusters.get(&job.cluster)?;
    let here = &service.workspace;
    let folder = service.state.join(name).join(format!("life-{}", job.retries));
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut command = text(job.field("command"));
    let given = job.field("environmentVariables").as_object().into_iter().flatten();
    let mut variables: BTreeMap<String, String> = given.map(|(name, value)| (name.clone(), text(value))).collect();
    for (kind, upper) in [("inputs", "INPUT"), ("outputs", "OUTPUT")] {
        for (name, binding) in job.field(kind).as_object().into_iter().flatten() {
            let value = bound(service, &folder, name, binding);
            command = command.replace(&format!("${{{{{kind}.{name}}}}}"), &value);
            variables.insert(format!("AZURE_ML_{upper}_{name}"), value);
        }
    }
    let experiment = job.field("experimentName").as_str().unwrap_or("Default").to_owned();
    let hosts: Vec<String> = (0..job.nodes.len()).map(address).collect();
    let fixed = [
        ("AZUREML_RUN_ID", name.to_owned()),
        ("AZUREML_ARM_SUBSCRIPTION", here.subscription.clone()),
        ("AZUREML_ARM_RESOURCEGROUP", here.group.clone()),
        ("AZUREML_ARM_WORKSPACE_NAME", here.name.clone()),
        ("AZUREML_ARM_PROJECT_NAME", experiment.clone()),
        ("AZ_BATCHAI_CLUSTER_NAME", cluster.name.clone()),
        ("AZ_BATCH_TASK_ID", format!("{name}-{}", job.retries)),
        ("AZ_BATCH_HOST_LIST", hosts.join(",")),
        ("AZ_BATCH_MASTER_NODE", format!("{}:6000", address(0))),
        ("MLFLOW_TRACKING_URI", service.tracking()),
        ("MLFLOW_TRACKING_TOKEN", tokens::issue(&service.key, tokens::ML, name, RUN_TOKEN).0),
        ("FTCTL_ENDPOINT_AZUREML", service.address.clone()),
        ("MLFLOW_RUN_ID", name.to_owned()),
        ("MLFLOW_EXPERIMENT_NAME", experiment),
    ];
    variables.extend(fixed.into_iter().chain(service.trusted()).map(|(name, value)| (name.to_owned(), value)));
    let identity = job.field("identity")["identityType"].as_str().unwrap_or_default().to_owned();
    Some(Order {
        name: name.to_owned(),
        life: job.retries,
        nodes: job.nodes.clone(),
        processes: job.processes,
        command,
        image: service.image_of(job),
        folder,
        datastores: datastores(service),
        code: storage::code(service, text(job.field("codeId")).as_str()),
        variables,
        identity,
    })
}

/// Every datastore is a folder in it.
fn datastores(service: &Service) -> PathBuf {
    service.state.join(".datastores")
}

/// The value of an input or an output: a literal, or a folder, which is that of its datastore.
fn bound(service: &Service, folder: &Path, name: &str, binding: &Value) -> String {
    if let Some(literal) = binding["value"].as_str() {
        return literal.to_owned();
    }
    let uri = binding["uri"].as_str().unwrap_or_default();
    let asset = uri.strip_prefix(&service.workspace.id()).and_then(|id| service.kept.get(id.trim_start_matches('/')));
    let uri = asset.and_then(|asset| asset.body["properties"]["dataUri"].as_str()).unwrap_or(uri);
    let place = uri.split_once("/datastores/").map(|(_, place)| place.replacen("/paths/", "/", 1));
    let path = match place {
        Some(place) => {
            let parts = Path::new(&place).components().filter(|part| matches!(part, Component::Normal(_)));
            datastores(service).join(parts.collect::<PathBuf>())
        }
        None => folder.join("mounts").join(Path::new(name).file_name().unwrap_or_default()),
    };
    // A folder that cannot be made is what the job complains about.
    let _ = fs::create_dir_all(&path);
    path.to_string_lossy().into_owned()
}

/// Every node has an address of its own; all are this computer's.
fn address(node: usize) -> String {
    format!("127.0.0.{}", node + 4)
}

fn ranks(order: &Order, node: usize, local: usize, port: u16) -> BTreeMap<&'static str, String> {
    let rank = node * order.processes + local;
    BTreeMap::from([
        ("AZUREML_CR_NODE_RANK", node.to_string()),
        ("AZUREML_PROCESS_NAME", format!("rank_{rank}")),
        ("AZ_BATCH_NODE_ID", order.nodes[node].clone()),
        ("MASTER_ADDR", address(0)),
        ("MASTER_PORT", port.to_string()),
        ("NODE_RANK", node.to_string()),
        ("RANK", rank.to_string()),
        ("LOCAL_RANK", local.to_string()),
        ("LOCAL_WORLD_SIZE", order.processes.to_string()),
        ("WORLD_SIZE", (order.nodes.len() * order.processes).to_string()),
    ])
}

async fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((address(0), 0)).await?.local_addr()?.port())
}

async fn reap(devcloud: Arc<Devcloud>, job: String, life: u32, rank: usize, mut child: Child) {
    let Ok(status) = child.wait().await else { return };
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(-1);
    devcloud.at_present().exited(&job, life, rank, code);
    devcloud.act();
}
