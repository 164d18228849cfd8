// What the viewer's code holds to, beside its types: the rules of typescript-eslint, and one way through the folders.
import eslint from "@eslint/js";
import tseslint from "typescript-eslint";

const FOLDERS = ["base", "data", "layout", "draw", "state", "views", "ui"];

/** A folder may import those before it; none after it. */
const oneWay = FOLDERS.map((folder, place) => ({
  files: [`src/${folder}/*.ts`],
  rules: {
    "no-restricted-imports": [
      "error",
      {
        patterns: FOLDERS.slice(place + 1).map((later) => ({
          group: [`../${later}/*`],
          message: `${folder}/ lies below ${later}/`,
        })),
      },
    ],
  },
}));

export default tseslint.config(
  { ignores: ["node_modules", "tests", "*.mjs"] },
  eslint.configs.recommended,
  tseslint.configs.recommendedTypeChecked,
  {
    languageOptions: {
      parserOptions: { projectService: true, tsconfigRootDir: import.meta.dirname },
    },
  },
  {
    rules: {
      complexity: ["error", 15],
      "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true }],
    },
  },
  ...oneWay,
);
