-- The name in the spelling of the rest of the schema.
ALTER TABLE enrolment_tokens RENAME TO enrollment_tokens;
