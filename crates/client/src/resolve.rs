//! Finding objects by name or id.

use crate::{Client, Error, OfVpc, Resource, Result};
use sluice_types::VpcId;

impl Client {
    /// Finds the object that `text` refers to: a name, searched among the objects that match the filters
    /// `within`, or an id (`vpc-42`). If `text` is the name of one object and the id of another, `name:TEXT`
    /// or `id:TEXT` selects one of them.
    ///
    /// # Errors
    /// The errors of all calls; [`Error::NoSuchName`], [`Error::AmbiguousName`], [`Error::NameOrId`].
    pub async fn find<T: Resource>(&self, text: &str, within: &[(&str, &str)]) -> Result<T> {
        let no_such_name = |name: &str| Error::NoSuchName {
            kind: T::NOUN,
            name: name.to_owned(),
            within: within.first().map(|(kind, id)| format!(" in {kind} {id}")).unwrap_or_default(),
        };
        if let Some(name) = text.strip_prefix("name:") {
            return self.find_by_name(name, within).await?.ok_or_else(|| no_such_name(name));
        }
        let Ok(id) = text.strip_prefix("id:").unwrap_or(text).parse::<T::Id>() else {
            return self.find_by_name(text, within).await?.ok_or_else(|| no_such_name(text));
        };
        if text.starts_with("id:") {
            return self.get(id).await;
        }
        let named: Option<T> = self.find_by_name(text, within).await?;
        match (named, self.get::<T>(id).await) {
            (None, found) => found,
            (Some(named), Ok(found)) if named.id() != found.id() => {
                Err(Error::NameOrId { kind: T::NOUN, text: text.to_owned(), named: named.id().to_string() })
            }
            (Some(named), Ok(_)) => Ok(named),
            (Some(named), Err(error)) if error.is_not_found() => Ok(named),
            // Whether the text is also the id of another object is not known.
            (Some(_), Err(error)) => Err(error),
        }
    }

    /// Finds the object of a VPC that `text` refers to, as [`Client::find`] does.
    ///
    /// # Errors
    /// The errors of [`Client::find`]; [`Error::OtherVpc`].
    pub async fn find_in_vpc<T: OfVpc>(&self, vpc: VpcId, text: &str) -> Result<T> {
        let found: T = self.find(text, &[("vpc", &vpc.to_string())]).await?;
        if found.vpc() == vpc {
            return Ok(found);
        }
        Err(Error::OtherVpc { kind: T::NOUN, id: found.id().to_string() })
    }

    /// Finds the object with this name among those that match the filters `within`.
    ///
    /// # Errors
    /// The errors of all calls; [`Error::AmbiguousName`].
    pub async fn find_by_name<T: Resource>(&self, name: &str, within: &[(&str, &str)]) -> Result<Option<T>> {
        let mut filters = within.to_vec();
        if T::NAMED {
            filters.push(("name", name));
        }
        let mut found: Vec<T> = self.list(&filters, None).await?;
        found.retain(|object| object.name() == name);
        if found.len() > 1 {
            return Err(Error::AmbiguousName {
                kind: T::NOUN,
                name: name.to_owned(),
                ids: found.iter().map(|object| object.id().to_string()).collect(),
                narrow: T::NARROW,
            });
        }
        Ok(found.pop())
    }

    /// The id of the object that [`Client::find`] finds.
    ///
    /// # Errors
    /// The errors of [`Client::find`].
    pub async fn id_of<T: Resource>(&self, text: &str, within: &[(&str, &str)]) -> Result<T::Id> {
        Ok(self.find::<T>(text, within).await?.id())
    }
}
