"""Language models behind the routes of OpenAI's API, which its clients speak to."""
