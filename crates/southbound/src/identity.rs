use crate::{Error, Node};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

const FILE: &str = "identity.json";

/// What an operator carries to a new node: a one-time token and how to reach
/// and recognise the controller. A secret until it is used.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnrolmentBundle {
    /// One-time token, good for an hour.
    pub token: String,
    /// The controller's authority, PEM.
    pub ca_pem: String,
    /// HOST:PORT of the southbound listener.
    pub controller: String,
    /// What the controller's certificate is checked for.
    pub server_name: String,
    /// The node's id: `gw-7`, `host-3`.
    pub node: String,
    /// `gateway` or `host`.
    pub role: String,
}

impl EnrolmentBundle {
    /// Reads the bundle's file.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Content`].
    pub fn load(path: &Path) -> Result<Self, Error> {
        read_json(path, "enrolment bundle")
    }

    /// Whose bundle it is.
    ///
    /// # Errors
    /// [`Error::Node`] when role and id do not fit.
    pub fn node(&self) -> Result<Node, Error> {
        Ok(Node::from_parts(&self.role, &self.node)?)
    }
}

// The token must not reach a log.
impl std::fmt::Debug for EnrolmentBundle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EnrolmentBundle")
            .field("controller", &self.controller)
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

/// A node's key and certificate, and its controller: all it needs to connect.
/// One file of its state directory, readable by its owner only.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// HOST:PORT of the southbound listener.
    pub controller: String,
    /// What the controller's certificate is checked for.
    pub server_name: String,
    /// `gateway:gw-7` or `host:host-3`.
    node: String,
    /// The controller's authority, PEM.
    pub(crate) ca_pem: String,
    pub(crate) certificate_pem: String,
    pub(crate) key_pem: String,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity")
            .field("controller", &self.controller)
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

impl Identity {
    /// From its parts.
    pub fn new(bundle: &EnrolmentBundle, node: Node, certificate_pem: String, key_pem: String) -> Self {
        Self {
            controller: bundle.controller.clone(),
            server_name: bundle.server_name.clone(),
            node: node.to_string(),
            ca_pem: bundle.ca_pem.clone(),
            certificate_pem,
            key_pem,
        }
    }

    /// Who this is.
    ///
    /// # Errors
    /// [`Error::Node`] when the file was tampered with.
    pub fn node(&self) -> Result<Node, Error> {
        Ok(self.node.parse()?)
    }

    /// What an earlier enrolment left in the state directory; `None` if there was none.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Content`].
    pub fn load(state_dir: &Path) -> Result<Option<Self>, Error> {
        let path = state_dir.join(FILE);
        match read_json(&path, "node identity") {
            Ok(identity) => Ok(Some(identity)),
            Err(Error::File { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes it into the state directory, which is made if it is absent: the
    /// whole file or nothing, whenever the machine dies.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn save(&self, state_dir: &Path) -> Result<(), Error> {
        let failed = |action, path: &Path| {
            let path = path.to_owned();
            move |source| Error::File { action, path, source }
        };
        prepare(state_dir)?;
        let (path, new) = (state_dir.join(FILE), state_dir.join(format!("{FILE}.new")));
        let bytes = serde_json::to_vec_pretty(self).map_err(|source| Error::Content {
            path: path.clone(),
            expected: "identity",
            source,
        })?;
        let write = || -> std::io::Result<()> {
            // A leftover could have another mode.
            if new.exists() {
                fs::remove_file(&new)?;
            }
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            File::open(state_dir)?.sync_all()
        };
        write().map_err(failed("write", &path))
    }
}

/// Makes the state directory, readable by its owner only, and checks that it
/// can be written: a token must not be spent for an identity that is then lost.
pub(crate) fn prepare(state_dir: &Path) -> Result<(), Error> {
    let make = || -> std::io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(state_dir)?;
        let probe = state_dir.join(format!("{FILE}.probe"));
        File::create(&probe)?;
        fs::remove_file(probe)
    };
    make().map_err(|source| Error::File {
        action: "write to the state directory",
        path: state_dir.to_owned(),
        source,
    })
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path, expected: &'static str) -> Result<T, Error> {
    let bytes =
        fs::read(path).map_err(|source| Error::File { action: "read", path: path.to_owned(), source })?;
    serde_json::from_slice(&bytes).map_err(|source| Error::Content {
        path: path.to_owned(),
        expected,
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_types::HostId;
    use std::os::unix::fs::PermissionsExt;

    fn identity() -> Identity {
        let bundle = EnrolmentBundle {
            token: "secret".into(),
            ca_pem: "ca".into(),
            controller: "192.0.2.1:7443".into(),
            server_name: "192.0.2.1".into(),
            node: "host-3".into(),
            role: "host".into(),
        };
        assert!(!format!("{bundle:?}").contains("secret"));
        Identity::new(&bundle, bundle.node().unwrap(), "certificate".into(), "key".into())
    }

    #[test]
    fn saved_for_the_owner_only_and_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("deep/state");
        assert_eq!(Identity::load(&state).unwrap(), None);
        identity().save(&state).unwrap();
        identity().save(&state).unwrap();
        let read = Identity::load(&state).unwrap().unwrap();
        assert_eq!(read, identity());
        assert_eq!(read.node().unwrap(), Node::Host(HostId::new(3)));
        let mode = fs::metadata(state.join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(&state).unwrap().count(), 1);
    }

    #[test]
    fn damage_is_an_error_that_names_the_file() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(FILE), "{").unwrap();
        let error = Identity::load(dir.path()).unwrap_err();
        assert!(error.to_string().contains("identity.json is no node identity"), "{error}");
        assert!(error.is_refusal());
    }
}
