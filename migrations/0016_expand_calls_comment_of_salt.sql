-- The comment promised more than a salt does: within a scope a node has one result. SHARE UPDATE EXCLUSIVE on durable._calls for a
-- moment. It landed if the comment of durable._calls.salt speaks of scopes.

comment on column durable._calls.salt is 'Cache namespace: a result is never shared between two scopes under two salts. Within a scope a node has one result, whatever the salt.';
