//! A PostgreSQL server for the tests, from the system's package, in a temporary directory, reached by its
//! Unix socket.

use sqlx::{Connection as _, Executor as _, PgConnection};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The shell that runs the server. It stops the server when this process closes the shell's input, also by
/// dying.
const KEEPER: &str = r#"
"$@" & server=$!
while read -r signal; do kill -"$signal" "$server"; wait "$server"; done
kill -QUIT "$server" 2>/dev/null; wait "$server"
"#;

pub struct Server {
    binaries: PathBuf,
    directory: tempfile::TempDir,
    keeper: Option<Child>,
}

/// The directory of the newest installed server's programs.
fn binaries() -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|version| Path::new(&format!("/usr/lib/postgresql/{version}/bin/initdb")).exists())
        .max();
    match newest {
        Some(version) => format!("/usr/lib/postgresql/{version}/bin").into(),
        None => panic!("no PostgreSQL server found in /usr/lib/postgresql: apt-get install postgresql"),
    }
}

/// PostgreSQL refuses to run as root; then the package's user runs it.
fn as_user(program: &Path) -> Command {
    if nix_is_root() {
        let mut command = Command::new("runuser");
        command.args(["-u", "postgres", "--"]).arg(program);
        return command;
    }
    Command::new(program)
}

fn nix_is_root() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/self").expect("/proc is mounted").uid() == 0
}

impl Server {
    pub async fn start() -> Self {
        let binaries = binaries();
        let directory = tempfile::tempdir().expect("a temporary directory");
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o777)).expect("chmod");
        let output = as_user(&binaries.join("initdb"))
            .args(["-U", "sluice", "--auth=trust", "--no-sync", "-E", "UTF8", "--locale=C", "-D"])
            .arg(directory.path().join("data"))
            .output()
            .expect("initdb starts");
        assert!(output.status.success(), "initdb: {}", String::from_utf8_lossy(&output.stderr));
        let mut server = Self { binaries, directory, keeper: None };
        server.run().await;
        server
    }

    /// Starts the server with its existing data, and waits until it responds.
    pub async fn run(&mut self) {
        let log = std::fs::File::options().create(true).append(true).open(self.directory.path().join("log"));
        let mut command = as_user(Path::new("/bin/sh"));
        command
            .args(["-c", KEEPER, "keeper"])
            .arg(self.binaries.join("postgres"))
            .arg("-D")
            .arg(self.directory.path().join("data"))
            .arg("-k")
            .arg(self.directory.path())
            // A killed server loses nothing that it passed to the kernel. Only a crash of the machine would
            // need fsync.
            .args(["-c", "listen_addresses=", "-c", "fsync=off", "-c", "max_connections=60"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log.expect("a log file"));
        self.keeper = Some(command.spawn().expect("the server starts"));
        let deadline = Instant::now() + Duration::from_secs(30);
        while let Err(error) = PgConnection::connect(&self.url("postgres")).await {
            let log = std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
            assert!(Instant::now() < deadline, "no PostgreSQL after 30 s: {error}\n{log}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Stops the server immediately, without waiting for clients.
    pub fn stop(&mut self) {
        if let Some(mut keeper) = self.keeper.take() {
            drop(keeper.stdin.take());
            keeper.wait().expect("the server's shell ends");
        }
    }

    /// The directory of the server's data.
    pub fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    pub fn url(&self, database: &str) -> String {
        format!("postgres://sluice@localhost/{database}?host={}", self.directory.path().display())
    }

    pub async fn create_database(&self, name: &str) -> String {
        let mut connection = PgConnection::connect(&self.url("postgres")).await.expect("a connection");
        let sql = sqlx::AssertSqlSafe(format!("CREATE DATABASE {name}"));
        connection.execute(sql).await.expect("a database");
        connection.close().await.expect("closing");
        self.url(name)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
        // The files belong to the other user.
        let _ = as_user(Path::new("/bin/rm")).arg("-rf").arg(self.directory.path().join("data")).status();
    }
}
