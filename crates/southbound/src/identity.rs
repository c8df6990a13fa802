use crate::{Error, Node};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

const FILE: &str = "identity.json";

/// What an operator copies to a new node: a one-time token, and how to reach and authenticate the controller.
/// Secret until the token is used.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnrollmentBundle {
    /// One-time token, valid for an hour.
    pub token: String,
    /// Certificate of the controller's authority, in PEM.
    pub ca_pem: String,
    /// Address of the southbound listener, as HOST:PORT.
    pub controller: String,
    /// The name that the controller's certificate must have.
    pub server_name: String,
    /// The node's id: `gw-7`, `host-3`.
    pub node: String,
    /// `gateway` or `host`.
    pub role: String,
}

impl EnrollmentBundle {
    /// Reads a bundle's file.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Content`].
    pub fn load(path: &Path) -> Result<Self, Error> {
        read_json(path, "enrollment bundle")
    }

    /// The node that the bundle is for.
    ///
    /// # Errors
    /// [`Error::Node`] if role and id do not match.
    pub fn node(&self) -> Result<Node, Error> {
        Ok(Node::from_parts(&self.role, &self.node)?)
    }
}

// The token must not appear in logs.
impl std::fmt::Debug for EnrollmentBundle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EnrollmentBundle")
            .field("controller", &self.controller)
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

/// A node's key and certificate, and its controller: everything it needs to connect. Stored in one file of
/// its state directory, readable only by the owner.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Address of the southbound listener, as HOST:PORT.
    pub controller: String,
    /// The name that the controller's certificate must have.
    pub server_name: String,
    /// `gateway:gw-7` or `host:host-3`.
    node: String,
    /// Certificate of the controller's authority, in PEM.
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
    /// The identity of a node that was just enrolled.
    pub fn new(bundle: &EnrollmentBundle, node: Node, certificate_pem: String, key_pem: String) -> Self {
        Self {
            controller: bundle.controller.clone(),
            server_name: bundle.server_name.clone(),
            node: node.to_string(),
            ca_pem: bundle.ca_pem.clone(),
            certificate_pem,
            key_pem,
        }
    }

    /// The node.
    ///
    /// # Errors
    /// [`Error::Node`] if the file was modified.
    pub fn node(&self) -> Result<Node, Error> {
        Ok(self.node.parse()?)
    }

    /// Reads the identity of an earlier enrollment from the state directory; `None` before the first enrollment.
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

    /// Writes the identity to the state directory, which is created if it does not exist. The file is
    /// replaced atomically, also if the machine crashes.
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
            // A file of an earlier attempt may have another mode.
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

/// Creates the state directory, readable only by the owner, and checks that it is writable: a token must not
/// be used for an identity that cannot be stored.
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
        let bundle = EnrollmentBundle {
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
    fn identity_is_saved_for_the_owner_only() {
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
    fn damaged_file_is_named_in_the_error() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(FILE), "{").unwrap();
        let error = Identity::load(dir.path()).unwrap_err();
        assert!(
            error.to_string().contains("identity.json does not contain a valid node identity"),
            "{error}"
        );
        assert!(error.is_refusal());
    }
}
