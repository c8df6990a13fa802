use crate::{Client, Error, Resource, Result};

impl Client {
    /// The object that `text` means: an id (`vpc-42`), else a name, looked for
    /// among what the filters let through.
    ///
    /// # Errors
    /// As all calls; [`Error::NoSuchName`], [`Error::AmbiguousName`].
    pub async fn find<T: Resource>(&self, text: &str, within: &[(&str, &str)]) -> Result<T> {
        if let Ok(id) = text.parse::<T::Id>() {
            return self.get(id).await;
        }
        self.find_by_name(text, within).await?.ok_or_else(|| Error::NoSuchName {
            kind: T::NOUN,
            name: text.to_owned(),
            within: within.first().map(|(kind, id)| format!(" in {kind} {id}")).unwrap_or_default(),
        })
    }

    /// The object of that name, if there is one.
    ///
    /// # Errors
    /// As all calls; [`Error::AmbiguousName`].
    pub async fn find_by_name<T: Resource>(&self, name: &str, within: &[(&str, &str)]) -> Result<Option<T>> {
        let mut filters = within.to_vec();
        filters.push(("name", name));
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

    /// The id that `text` means; an id is not looked up.
    ///
    /// # Errors
    /// As [`Client::find`].
    pub async fn id_of<T: Resource>(&self, text: &str, within: &[(&str, &str)]) -> Result<T::Id> {
        match text.parse::<T::Id>() {
            Ok(id) => Ok(id),
            Err(_) => Ok(self.find::<T>(text, within).await?.id()),
        }
    }
}
