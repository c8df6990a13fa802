//! Finding objects by name or id.

use crate::{Client, Error, Resource, Result};

impl Client {
    /// Finds the object that `text` refers to, among those that match the filters `within`: by name, or by id (`vpc-42`). If `text` is the name of one object and the id of another, `name:TEXT`
    /// or `id:TEXT` selects one of them.
    ///
    /// # Errors
    /// The errors of all calls; [`Error::NoSuchName`], [`Error::AmbiguousName`], [`Error::NameOrId`],
    /// [`Error::NotWithin`].
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
            return self.get_within(id, within).await;
        }
        let Some(named) = self.find_by_name::<T>(text, within).await? else {
            return self.get_within(id, within).await;
        };
        match self.get::<T>(id).await {
            Ok(found) if named.id() != found.id() => {
                Err(Error::NameOrId { kind: T::NOUN, text: text.to_owned(), named: named.id().to_string() })
            }
            Ok(_) => Ok(named),
            Err(error) if error.is_not_found() => Ok(named),
            // Whether the text is also the id of another object is not known.
            Err(error) => Err(error),
        }
    }

    /// The object with this id, which must match the filters.
    async fn get_within<T: Resource>(&self, id: T::Id, within: &[(&str, &str)]) -> Result<T> {
        let found: T = self.get(id).await?;
        let Some((_, parent)) = within.first() else { return Ok(found) };
        if self.named::<T>(&found.name(), within).await?.iter().any(|one| one.id() == id) {
            return Ok(found);
        }
        Err(Error::NotWithin { kind: T::NOUN, id: id.to_string(), within: (*parent).to_owned() })
    }

    /// Finds the object with this name among those that match the filters `within`.
    ///
    /// # Errors
    /// The errors of all calls; [`Error::AmbiguousName`].
    pub async fn find_by_name<T: Resource>(&self, name: &str, within: &[(&str, &str)]) -> Result<Option<T>> {
        let mut found: Vec<T> = self.named(name, within).await?;
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

    /// The objects with this name among those that match the filters.
    async fn named<T: Resource>(&self, name: &str, within: &[(&str, &str)]) -> Result<Vec<T>> {
        let mut filters = within.to_vec();
        if T::NAMED {
            filters.push(("name", name));
        }
        let mut found: Vec<T> = self.list(&filters, None).await?;
        found.retain(|object| object.name() == name);
        Ok(found)
    }

    /// The id of the object that [`Client::find`] finds.
    ///
    /// # Errors
    /// The errors of [`Client::find`].
    pub async fn id_of<T: Resource>(&self, text: &str, within: &[(&str, &str)]) -> Result<T::Id> {
        Ok(self.find::<T>(text, within).await?.id())
    }
}
