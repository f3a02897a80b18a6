"""Chrome traces decoded into columns, in processes of their own where they are large."""
