// Of the studio's JavaScript: what neither prettier nor the types see. Files that begin with @ts-check are held to all of it.
const CHECKED = [
  "src/regard/studio/offline/*.js",
  ...[
    "api",
    "flow",
    "flow_layout",
    "formula",
    "learn",
    "lesson",
    "marks",
    "matrices",
    "pronoun",
    "route",
    "stations",
    "take_away",
  ].map((name) => `src/regard/studio/web/${name}.js`),
];

export default [
  {
    files: CHECKED,
    languageOptions: { ecmaVersion: 2024, sourceType: "module" },
    rules: {
      complexity: ["error", 14],
      eqeqeq: "error",
      "max-lines-per-function": ["error", { max: 60 }],
      "no-shadow": ["error", { allow: ["_"] }],
      "no-unused-vars": "error",
      "prefer-const": "error",
    },
  },
];
