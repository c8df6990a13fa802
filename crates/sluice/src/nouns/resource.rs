//! The verbs that all kinds of API objects share (`list`, `show`, `create`, `delete`), written once. A kind
//! is described by [`Kind`] and [`Creatable`] in `nouns/`; this file changes when all kinds get a new verb or
//! flag.

use crate::api::{self, ApiArgs};
use crate::failure::Failure;
use crate::output;
use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::Value;
use sluice_client::{Client, Created, NewObject, Resource, Tenant, Vpc};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Help texts of the shared verbs, one sentence each.
pub struct Help {
    pub list: &'static str,
    pub show: &'static str,
}

/// A kind of object that the command line lists and shows.
pub trait Kind: Resource {
    const HELP: Help;
    /// Fields that a table of objects shows, in order.
    const COLUMNS: &'static [&'static str];
    /// The arguments that select one object: [`NameOrId`], [`NameInVpc`], ...
    type Selector: Args + Select<Self>;
    /// The arguments that restrict a list.
    type Filters: Args + Filter;

    /// The object as a table shows it; columns are taken from its fields.
    fn table_row(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}

/// A kind of object that the command line creates and deletes, too.
pub trait Creatable: Kind {
    const CREATE_HELP: &'static str;
    const DELETE_HELP: &'static str;
    /// The arguments of `create`.
    type New: Args + Create<Object = Self>;
    /// Verbs that only this kind has; [`NoVerb`] for a kind that has only the common verbs.
    type Verbs: Subcommand + Run;
    /// Options of `delete` that show what it would do; [`NoPreview`] for most kinds.
    type Preview: Args + Preview<Self>;
}

/// Options of `delete` that show what it would do.
pub trait Preview<K> {
    /// Shows it if an option asks for that. Then the answer is true, and nothing is deleted.
    async fn show(&self, api: &ApiArgs, client: &Client, object: &K) -> Result<bool, Failure>;
}

/// The options of a kind that has none.
#[derive(Args)]
pub struct NoPreview {}

impl<K> Preview<K> for NoPreview {
    async fn show(&self, _: &ApiArgs, _: &Client, _: &K) -> Result<bool, Failure> {
        Ok(false)
    }
}

/// Arguments that select one object.
pub trait Select<K> {
    async fn find(&self, client: &Client) -> Result<K, Failure>;
}

/// Arguments that restrict a list.
pub trait Filter {
    /// The query parameters of the API, names resolved to ids.
    async fn query(self, client: &Client) -> Result<Vec<(&'static str, String)>, Failure>;
}

/// Arguments of a creation.
pub trait Create {
    type Object: Resource;
    type Body: NewObject<Object = Self::Object>;
    /// The body to post and the object to create it in, names resolved to ids.
    async fn request(self, client: &Client) -> Result<(Parent<Self>, Self::Body), Failure>;
}

/// What an object is created in, such as its VPC.
pub type Parent<N> = <<N as Create>::Body as NewObject>::Parent;

/// A verb that can be run.
pub trait Run {
    async fn run(self, api: &ApiArgs, client: &Client) -> Result<(), Failure>;
}

/// `list` and `show`, for kinds that are not created by themselves.
#[derive(Subcommand)]
pub enum ReadVerb<K: Kind> {
    #[command(about = K::HELP.list)]
    List(ListArgs<K>),
    #[command(about = K::HELP.show)]
    Show(ShowArgs<K>),
}

impl<K: Kind> Run for ReadVerb<K> {
    async fn run(self, api: &ApiArgs, client: &Client) -> Result<(), Failure> {
        match self {
            Self::List(args) => args.run(api, client).await,
            Self::Show(args) => args.run(api, client).await,
        }
    }
}

/// `list`, `show`, `create` and `delete`, and the kind's own verbs.
#[derive(Subcommand)]
pub enum Verb<K: Creatable> {
    #[command(about = K::HELP.list)]
    List(ListArgs<K>),
    #[command(about = K::HELP.show)]
    Show(ShowArgs<K>),
    #[command(about = K::CREATE_HELP)]
    Create(CreateArgs<K>),
    #[command(flatten)]
    Own(K::Verbs),
    #[command(about = K::DELETE_HELP)]
    Delete(DeleteArgs<K>),
}

impl<K: Creatable> Run for Verb<K> {
    async fn run(self, api: &ApiArgs, client: &Client) -> Result<(), Failure> {
        match self {
            Self::List(args) => args.run(api, client).await,
            Self::Show(args) => args.run(api, client).await,
            Self::Create(args) => args.run(api, client).await,
            Self::Own(verb) => verb.run(api, client).await,
            Self::Delete(args) => args.run(api, client).await,
        }
    }
}

/// The own verbs of a kind that has none.
#[derive(Subcommand)]
pub enum NoVerb {}

impl Run for NoVerb {
    async fn run(self, _: &ApiArgs, _: &Client) -> Result<(), Failure> {
        match self {}
    }
}

#[derive(Args)]
pub struct ListArgs<K: Kind> {
    #[command(flatten)]
    filters: K::Filters,
    /// List at most N objects
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
}

impl<K: Kind> ListArgs<K> {
    async fn run(self, api: &ApiArgs, client: &Client) -> Result<(), Failure> {
        let query = self.filters.query(client).await?;
        let query: Vec<(&str, &str)> = query.iter().map(|(key, value)| (*key, value.as_str())).collect();
        let objects: Vec<K> = client.list(&query, self.limit).await?;
        if api.output != output::Format::Table {
            return output::list(api.output, &[], &objects);
        }
        let rows: Vec<Value> = objects.iter().map(Kind::table_row).collect();
        output::list(api.output, K::COLUMNS, &rows)
    }
}

#[derive(Args)]
pub struct ShowArgs<K: Kind> {
    #[command(flatten)]
    selector: K::Selector,
}

impl<K: Kind> ShowArgs<K> {
    async fn run(self, api: &ApiArgs, client: &Client) -> Result<(), Failure> {
        output::one(api.output, &self.selector.find(client).await?)
    }
}

#[derive(Args)]
pub struct CreateArgs<K: Creatable> {
    #[command(flatten)]
    new: K::New,
    #[command(flatten)]
    wait: Wait,
}

impl<K: Creatable> CreateArgs<K> {
    async fn run(self, api: &ApiArgs, client: &Client) -> Result<(), Failure> {
        let (parent, body) = self.new.request(client).await?;
        let Created { object, created } = client.create(parent, &body).await?;
        if !created {
            eprintln!("{} `{}` already exists with the same content", K::NOUN, object.name());
        }
        self.wait.print_when(api, client, object, |_| true).await
    }
}

#[derive(Args)]
pub struct DeleteArgs<K: Creatable> {
    #[command(flatten)]
    selector: K::Selector,
    #[command(flatten)]
    expect: Expect,
    #[command(flatten)]
    preview: K::Preview,
    /// Wait until no node has entries of the object, for at most SECONDS [30 if left out]
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "30")]
    wait: Option<u64>,
}

impl<K: Creatable> DeleteArgs<K> {
    async fn run(self, api: &ApiArgs, client: &Client) -> Result<(), Failure> {
        let object = self.selector.find(client).await?;
        if self.preview.show(api, client, &object).await? {
            return Ok(());
        }
        let removal = client.delete::<K>(object.id(), self.expect.if_revision).await?;
        eprintln!("deleted {} `{}` ({})", K::NOUN, object.name(), object.id());
        if let Some(seconds) = self.wait {
            let what = format!("{} {}", K::NOUN, object.id());
            client.wait_removed(&what, removal.revision, Duration::from_secs(seconds)).await?;
        }
        Ok(())
    }
}

/// The arguments of a verb that changes one object: which one, and at which revision.
#[derive(Args)]
pub struct Target<K: Kind> {
    #[command(flatten)]
    selector: K::Selector,
    #[command(flatten)]
    expect: Expect,
}

impl<K: Kind> Target<K> {
    pub async fn find(&self, client: &Client) -> Result<K, Failure> {
        self.selector.find(client).await
    }

    pub async fn id(&self, client: &Client) -> Result<K::Id, Failure> {
        Ok(self.find(client).await?.id())
    }

    /// The revision that `--if-revision` demands.
    pub fn expected(&self) -> Option<u64> {
        self.expect.if_revision
    }

    /// Changes the fields of `patch`.
    pub async fn update(&self, client: &Client, patch: &(impl Serialize + Sync)) -> Result<K, Failure> {
        Ok(client.update::<K>(self.id(client).await?, patch, self.expected()).await?)
    }
}

#[derive(Args)]
pub struct Expect {
    /// Refuse if the object is not at this revision, because it was changed in the meantime
    #[arg(long, value_name = "REVISION")]
    if_revision: Option<u64>,
}

#[derive(Args)]
pub struct Wait {
    /// Wait until every node that needs the object has programmed it, for at most SECONDS [30 if left out]
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "30")]
    wait: Option<u64>,
}

impl Wait {
    /// With `--wait`, waits until the object is programmed and `is_done`; prints it.
    pub async fn print_when<K: Resource>(
        self,
        api: &ApiArgs,
        client: &Client,
        object: K,
        is_done: impl Fn(&K) -> bool,
    ) -> Result<(), Failure> {
        let object = match self.wait {
            Some(seconds) => client.wait_until(object.id(), Duration::from_secs(seconds), is_done).await?,
            None => object,
        };
        output::one(api.output, &object)
    }
}

/// Selects by name or id; the name is unique in the cloud.
#[derive(Args)]
pub struct NameOrId {
    /// Name or id
    #[arg(value_name = "NAME|ID")]
    name: String,
}

impl<K: Resource> Select<K> for NameOrId {
    async fn find(&self, client: &Client) -> Result<K, Failure> {
        Ok(client.find(&self.name, &[]).await?)
    }
}

/// Selects a VPC.
#[derive(Args)]
pub struct VpcName {
    /// Name, TENANT/NAME if several tenants have a VPC of this name, or id
    #[arg(value_name = "NAME|TENANT/NAME|ID")]
    name: String,
}

impl Select<Vpc> for VpcName {
    async fn find(&self, client: &Client) -> Result<Vpc, Failure> {
        api::vpc(client, &self.name).await
    }
}

/// Selects by name or id; the name is unique in its tenant.
#[derive(Args)]
pub struct NameInTenant {
    /// Name, TENANT/NAME if several tenants have one of this name, or id
    #[arg(value_name = "NAME|TENANT/NAME|ID")]
    name: String,
}

impl<K: Resource> Select<K> for NameInTenant {
    async fn find(&self, client: &Client) -> Result<K, Failure> {
        let Some((tenant, name)) = self.name.split_once('/') else {
            return Ok(client.find(&self.name, &[]).await?);
        };
        let tenant = client.id_of::<Tenant>(tenant, &[]).await?;
        Ok(client.find(name, &[("tenant", &tenant.to_string())]).await?)
    }
}

/// Selects by name or id; the name is unique in its VPC.
#[derive(Args)]
pub struct NameInVpc {
    /// Name, VPC/NAME, TENANT/VPC/NAME or id
    #[arg(value_name = "NAME|VPC/NAME|ID")]
    name: String,
    #[command(flatten)]
    vpc: InVpc,
}

impl<K: Resource> Select<K> for NameInVpc {
    async fn find(&self, client: &Client) -> Result<K, Failure> {
        // Names have no `/`.
        let (vpc, name) = match (self.name.rsplit_once('/'), &self.vpc.vpc) {
            (None, _) => (self.vpc.id(client).await?, self.name.as_str()),
            (Some((vpc, name)), None) => (Some(api::vpc(client, vpc).await?.id.to_string()), name),
            (Some((vpc, _)), Some(_)) => {
                let text = format!("`{}` names the VPC `{vpc}`: leave out --vpc", self.name);
                return Err(Failure::Usage(text));
            }
        };
        let within: Vec<(&str, &str)> = vpc.as_deref().map(|vpc| ("vpc", vpc)).into_iter().collect();
        Ok(client.find(name, &within).await?)
    }
}

#[derive(Args)]
pub struct InVpc {
    /// Only in this VPC: name, TENANT/NAME or id
    #[arg(long, value_name = "VPC")]
    vpc: Option<String>,
}

impl InVpc {
    /// The id of the VPC, if there is one.
    pub async fn id(&self, client: &Client) -> Result<Option<String>, Failure> {
        match &self.vpc {
            Some(vpc) => Ok(Some(api::vpc(client, vpc).await?.id.to_string())),
            None => Ok(None),
        }
    }
}

/// Restricts a list to a name.
#[derive(Args)]
pub struct ByName {
    /// Only objects with this name
    #[arg(long)]
    name: Option<String>,
}

impl Filter for ByName {
    async fn query(self, _: &Client) -> Result<Vec<(&'static str, String)>, Failure> {
        Ok(self.name.map(|name| ("name", name)).into_iter().collect())
    }
}

/// Restricts a list to a VPC and a name.
#[derive(Args)]
pub struct ByVpc {
    #[command(flatten)]
    vpc: InVpc,
    #[command(flatten)]
    name: ByName,
}

impl Filter for ByVpc {
    async fn query(self, client: &Client) -> Result<Vec<(&'static str, String)>, Failure> {
        let mut query = self.name.query(client).await?;
        query.extend(self.vpc.id(client).await?.map(|vpc| ("vpc", vpc)));
        Ok(query)
    }
}

/// The id of the object that `text` names, if there is a text.
pub async fn optional_id<K: Resource>(client: &Client, text: Option<&str>) -> Result<Option<K::Id>, Failure> {
    match text {
        Some(text) => Ok(Some(client.id_of::<K>(text, &[]).await?)),
        None => Ok(None),
    }
}

/// `enroll`, of hosts and gateways.
#[derive(Args)]
pub struct Enroll {
    /// Name or id
    #[arg(value_name = "NAME|ID")]
    name: String,
    /// File to write; only its owner can read it
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

impl Enroll {
    /// Writes an enrollment bundle.
    pub async fn run<K: Resource>(self, client: &Client) -> Result<(), Failure> {
        let object: K = client.find(&self.name, &[]).await?;
        // The file first: a token that cannot be written is lost, but valid.
        let file = create_secret(&self.out)?;
        if let Err(failure) = write_bundle(client, &object, file, &self.out).await {
            let _ = std::fs::remove_file(&self.out);
            return Err(failure);
        }
        eprintln!(
            "{} `{}`: wrote {}; copy it to the node and start the agent there with --enrollment",
            K::NOUN,
            object.name(),
            self.out.display()
        );
        Ok(())
    }
}

async fn write_bundle<K: Resource>(
    client: &Client,
    object: &K,
    mut file: File,
    path: &Path,
) -> Result<(), Failure> {
    let bundle = client.enroll::<K>(object.id()).await?;
    let text = serde_json::to_string_pretty(&bundle)
        .map_err(|error| Failure::Usage(format!("cannot print the bundle as JSON: {error}")))?;
    let written = file.write_all((text + "\n").as_bytes()).and_then(|()| file.sync_all());
    written.map_err(|source| cannot_write(path, source))
}

fn cannot_write(path: &Path, source: std::io::Error) -> Failure {
    Failure::System { what: format!("cannot write {}", path.display()), source }
}

/// Creates a file that only its owner can read. An existing file or link is an error, so that its permissions
/// never apply.
fn create_secret(path: &Path) -> Result<File, Failure> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    options.open(path).map_err(|source| cannot_write(path, source))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn secret_file_is_private_and_never_overwrites_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bundle.json");
        create_secret(&path).unwrap().write_all(b"secret").unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(create_secret(&path).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "secret");
        // A link could point at a file that others can read.
        let link = folder.path().join("link.json");
        std::os::unix::fs::symlink(folder.path().join("target.json"), &link).unwrap();
        assert!(create_secret(&link).is_err());
        assert!(!folder.path().join("target.json").exists());
    }
}
